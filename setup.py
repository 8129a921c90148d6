"Package metadata, read from `settings.ini` so that nbdev and pip share one source."
from configparser import ConfigParser
from pathlib import Path
from setuptools import find_packages, setup

root = Path(__file__).parent
ini = ConfigParser(delimiters=['='])
ini.read(root/'settings.ini', encoding='utf-8')
cfg = ini['DEFAULT']

pythons = ['3.10', '3.11', '3.12', '3.13', '3.14']
statuses = {'3': '3 - Alpha', '4': '4 - Beta', '5': '5 - Production/Stable'}
licenses = {'apache2': 'Apache-2.0'}

setup(
    name=cfg['lib_name'],
    version=cfg['version'],
    description=cfg['description'],
    long_description=(root/'README.md').read_text(encoding='utf-8'),
    long_description_content_type='text/markdown',
    author=cfg['author'],
    author_email=cfg['author_email'],
    license=licenses[cfg['license']],
    url=cfg['git_url'],
    project_urls={'Documentation': cfg['doc_host'] + cfg['doc_baseurl']},
    keywords=cfg['keywords'].split(),
    classifiers=[
        'Development Status :: ' + statuses[cfg['status']],
        'Intended Audience :: ' + cfg['audience'],
        'Natural Language :: ' + cfg['language'],
        *(f'Programming Language :: Python :: {v}' for v in pythons[pythons.index(cfg['min_python']):]),
    ],
    python_requires='>=' + cfg['min_python'],
    packages=find_packages(include=[cfg['lib_path'], cfg['lib_path'] + '.*']),
    package_data={cfg['lib_path']: cfg.get('package_data', '').split()},
    install_requires=cfg['requirements'].split(),
    extras_require={'dev': cfg['dev_requirements'].split(), 'ray': cfg['ray_requirements'].split()},
    entry_points={
        'console_scripts': cfg['console_scripts'].split(),
        'nbdev': [f"{cfg['lib_path']}={cfg['lib_path']}._modidx:d"],
    },
    zip_safe=False,
)
